import { Controller, Get, HttpCode, Param, Post } from '@nestjs/common';
import type { Report } from './report.entity.js';
import { ReportsService } from './reports.service.js';

@Controller('reports')
export class ReportsController {
  constructor(private readonly reports: ReportsService) {}

  /** 200 with the report; 423 while another rebuild runs; 409 if a newer one took over meanwhile. */
  @Post(':customerId/rebuild')
  @HttpCode(200)
  rebuild(@Param('customerId') customerId: string): Promise<Report> {
    return this.reports.rebuild(customerId);
  }

  @Get(':customerId')
  find(@Param('customerId') customerId: string): Promise<Report> {
    return this.reports.find(customerId);
  }
}
